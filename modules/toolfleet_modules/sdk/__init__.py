"""Makes a module of functions: tools from signatures, and the ASGI app that offers them."""
