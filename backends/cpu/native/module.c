/* An empty Python module, so that setuptools builds the library; ctypes loads it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, NULL,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }
