"""Attention reads over paged pools: one folder per operation.

Each operation returns a partial ``(acc, m, l)``; :mod:`pallas_kernels.merge`
combines partials.  This version has the plain XLA reads (``reference``).  This
package never imports ``hybridcache_jax``, and importing it does not import Pallas.
"""
