"""CMF v2, the container of the original cortiq engine: read, verified, decoded and encoded.

`reader` opens a file, `directory` and `header` check its parts, `payloads` checks and `decode`
decodes every tensor encoding, `layouts` gives them to the graph, `encode` makes them, `writer`
writes a file.
"""
