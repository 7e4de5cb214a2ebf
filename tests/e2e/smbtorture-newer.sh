# The tests that smbtorture 4.22, of Debian's next release, has beyond those of 4.17; tests/e2e/smbtorture.sh says more.
# long: 100
# limit: 600
export NEWER=1
exec bash "$(dirname "$0")/smbtorture.sh"
