"""The REST side: thin routers, problem+json, authentication, limits, metrics and the supervision of the worker."""
