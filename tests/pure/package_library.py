"""C functions of packages, compiled as their pages say."""

import os
import shutil
import subprocess

import pytest

from cortiq_cpu import INCLUDE

FLAGS = ["-O2", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]


def compiled(source, made, *libraries):
    """Compile a source into the library `made`; skip the test where there is no compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, *FLAGS, f"-I{INCLUDE}", source, "-o", made, *libraries]
    subprocess.run(command, check=True)
    return made
