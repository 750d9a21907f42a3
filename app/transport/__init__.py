"""What worker and readers share: frames, messages, the region descriptor, the control page and the slabs.

Nothing here knows fastapi or transformers; torch and cuda-bindings are imported only inside ``cuda_ipc``, lazily.
"""
