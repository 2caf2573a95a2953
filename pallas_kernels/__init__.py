"""Attention reads over paged pools: one folder per operation.

Each operation returns a partial ``(acc, m, l)``; :mod:`pallas_kernels.merge`
combines partials.  ``api`` takes the arguments of a read and picks among plain XLA
(``reference``) and kernels (``mosaic_tpu``); see :mod:`pallas_kernels.choice`.  This
package never imports ``hybridcache_jax``, and importing it does not import Pallas.
"""
