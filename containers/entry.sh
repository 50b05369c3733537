#!/bin/sh
# Runs a command of the image with the compiled loops that the image carries.  An image may be read-only and its user any:
# they are copied, once, to the folder where this user's processes look for them.  A folder that cannot be written costs
# the seconds of compiling, no more.
set -eu
kernels=${BNP_KERNELS:-/opt/bnp_dask/kernels}
cache=${NUMBA_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}}
if [ -d "$kernels/bnp_dask" ] && mkdir -p "$cache/bnp_dask" 2>/dev/null; then
    # what is there already is newer, or the same
    cp -R -n "$kernels/bnp_dask/." "$cache/bnp_dask/" 2>/dev/null || true
fi
exec "$@"
