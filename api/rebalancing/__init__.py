"""When an engine is rebalanced and whether a plan is worth it: pure rules, without database, engine or clock.

``timing`` says when a schedule is due, ``hours`` when engines may be changed, ``gates`` holds the limits of a schedule,
``evidence`` what a cycle has found, ``decide`` what follows from both.
"""
