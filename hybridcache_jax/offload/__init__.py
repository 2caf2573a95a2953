"""Outer tiers: what leaves device memory and comes back, verified or not at all.

``payload``       what one block looks like outside, sealed with a digest
``places``        facts about what is held outside, and what they cost
``host_tier``     places in host memory, or of blocks that lie in a store: bounded
``transfer``      blocks between device memory and payloads, in compiled calls
``whereabouts``   where the blocks that claims name lie
``moves_out``     from the device to the tier, between the phases of an eviction
``loads``         what is asked back, from the request to the registration
``homes``         memory on the device that was handed out for what comes
``staging``       what comes for loads: read and verified
``placing``       from there to its place on the device, and whole loads to claims
``outer``         loads of one ``PrefixCache``
``stored_blocks`` which blocks records offer
``fetches``       blocks on their way from a store
``lookups``       asking a store what it has, within a time
``discovery``     from records to claims
``held_back``     published prefixes that are saved when they are evicted
``saves``         prefixes that wait to be saved, and what is tried again
``saving``        one of them, from claims to a record
``pack_writes``   packs that are being written
``generations``   records that were given up, and what goes with them
``uses``          notes of what is of use, so that it is not collected
``tasks``         tasks for an executor that may refuse them
``store_link``    one ``PrefixCache`` and one store

A block of an outer tier is a *place*.  Claims name it like a block, by a number past
the pool's own and by an epoch; facts about it say ``ON_DISK`` and ``ON_DISK_PREFIX``,
so a plan that needs it is told to wait for I/O.
"""
