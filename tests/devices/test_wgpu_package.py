"""An operator of a package's own in WGSL: the bits of its definition, and what a bad text says."""

import os
import tempfile
from dataclasses import replace

import adapter
import pytest

os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp())  # software Vulkan asks for one

from packaged import computed, mean_norm, with_package

from cortiq.backend import Kernel
from cortiq.errors import BackendError
from cortiq.ir import ops
from cortiq_reference.backend import ReferenceBackend
from cortiq_wgpu import RowShader
from cortiq_wgpu.backend import WgpuBackend

pytestmark = adapter.needed


@pytest.mark.parametrize("late", [False, True])
def test_a_packages_operator_has_the_bits_of_its_definition(late):
    plugins = with_package(ReferenceBackend(), WgpuBackend())
    assert not plugins.problems
    expected, _ = computed(plugins.backends["reference"], late)
    found, placement = computed(plugins.backends["wgpu"], late)
    assert found == expected
    assert {placement["y"], placement["w"]} == {"wgpu/mean-norm"}
    assert {placement["x"], placement["sum"]} == {"wgpu"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("x[$output0] = $epsilon;", r"the shader of wgpu/mean-norm names \$epsilon"),
        ("x[$output0] = 1.0;", "the shader of wgpu/mean-norm does not compile"),
    ],
)
def test_a_bad_text_is_an_error_of_its_package(body, sentence):
    backend = WgpuBackend()
    backend.use_kernel(Kernel("wgpu", mean_norm().MeanNorm, RowShader(body), "mean-norm"))
    with pytest.raises(BackendError, match=sentence):
        computed(backend)


def test_what_is_no_shader_is_refused():
    kernel = Kernel("wgpu", ops.Add, RowShader("x[$output0] = 0u;"), "zero")
    backend = WgpuBackend()
    with pytest.raises(BackendError, match=r"takes a cortiq_wgpu\.RowShader"):
        backend.use_kernel(replace(kernel, function=len))
    with pytest.raises(BackendError, match="MatMul, which takes no kernel"):
        backend.use_kernel(replace(kernel, op=ops.MatMul))
