"""speculators trains from our slab: its hidden-states backend ``draftport``. See docs/vllm.md.

Importing this package registers the backend with ``hs_connectors``.
"""

from .backend import DraftportBackend

__all__ = ["DraftportBackend"]
