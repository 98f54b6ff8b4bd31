# On the GPU machine: unpack what was carried, then measure in the background, over several calls, and bring back what
# there is. Usage: vllm_go.sh SECONDS-TO-WAIT BUDGET-S [options of lab.gpu.vllm]
set -u
: "${OUT:?is the folder whose files come back}"
wait_s=$1 budget_s=$2; shift 2
home=${GPU_WORK:-${TMPDIR:-/tmp}/gpu-vllm}; mkdir -p $home/site $home/vllm
for name in vllm site; do
  archive=lab/gpu/carry/$name.tar.xz
  [ -f $archive ] && [ ! -f $home/.$name ] && tar xJf $archive -C $home/$name && touch $home/.$name
done
[ -f $home/.vllm ] && [ -f $home/.site ] || { echo "carry vllm.tar.xz and site.tar.xz first"; exit 3; }
# the number of the measuring process: it has a session of its own, as a call that is cut takes all that it started with it
measuring() { [ -f $home/running ] && kill -0 "$(cat $home/running)" 2> /dev/null; }
if ! measuring; then
  rm -rf $home/tree; mkdir -p $home/tree; cp -r calibration sizing lab data triton_tools $home/tree/ 2>/dev/null
  ( cd $home/tree; PYTHONPATH=$home/tree:$home/vllm:$home/site exec setsid bash -c '"${@:2}"; rm -f "$1"' - $home/running \
    python3 -m lab.gpu.vllm --budget-s $budget_s --work $home/work --out $home/out "$@" > $home/log 2>&1 < /dev/null ) &
  echo $! > $home/running
  disown
fi
end=$(( $(date +%s) + wait_s ))
while measuring && [ $(date +%s) -lt $end ]; do sleep 1; done
tail -n ${TAIL:-60} $home/log
for file in $home/work/server-*.log; do echo "== $file"; grep -iE "error|KV cache size|graph|compil|backend|version" $file | tail -n ${SERVER:-8} | cut -c1-220; done
[ -f $home/out/measured.tar.gz ] && split -b 15M $home/out/measured.tar.gz $OUT/measured.tar.gz.
cp $home/log $OUT/log; ls -la $OUT
