"""The version, in one place for the API, the client and the worker."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("draftport")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
