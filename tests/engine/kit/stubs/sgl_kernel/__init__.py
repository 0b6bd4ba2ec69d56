"""Stands in for SGLang's compiled kernels on a CPU without AMX: every name imports, and raises when it is called."""

__version__ = "0.0.0+stub"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_args, **_kwargs):
        raise RuntimeError(f"the sgl_kernel stub was called: {name}")

    kernel.__name__ = name
    return kernel
