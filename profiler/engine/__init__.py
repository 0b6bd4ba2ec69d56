"""Talking to a live engine: the plugin's contract, the client, capture and push.

``json_fields``, ``map_rules``, ``counts_codec`` and the ``contract*`` modules import only the standard library and
numpy: the engine-side plugin and the replay engine share them. The client side (``client``, ``preflight``, ``push``,
``capture``, ``history``) also uses httpx and ``placement``.
"""
