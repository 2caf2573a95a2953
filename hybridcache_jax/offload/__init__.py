"""Outer tiers: what leaves device memory and comes back, verified or not at all.

``payload``    what one block looks like outside, sealed with a digest
``host_tier``  places in host memory: bounded, with facts of their own
``transfer``   blocks between device memory and payloads, in compiled calls
``loads``      what is asked back, from the request to the registration
``outer``      all of it for one ``PrefixCache``

A block of an outer tier is a *place*.  Claims name it like a block, by a number past
the pool's own and by an epoch; facts about it say ``ON_DISK`` and ``ON_DISK_PREFIX``,
so a plan that needs it is told to wait for I/O.
"""
