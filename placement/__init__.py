"""Pure planning: where every expert and its replicas live, and what that is worth.

Shape letters, used at the end of every array's name:

======  ==============================================================
letter  axis
======  ==============================================================
W       windows (stretches of traffic)
L       decoder layers (dense layers keep their all-zero row)
S       source GPUs (home of the tokens); length 1 when sources are uniform
E       logical experts
P       slots (physical experts); slot ``p`` is on GPU ``p // slots_per_gpu``
G       GPUs (= EP ranks)
N       nodes
T, K    tokens, experts per token (top-k)
Z       engine steps (forward passes)
======  ==============================================================

The data flows one way: demand -> problem -> solver -> plan; ``score`` judges any layout.
"""
