# smbtorture's suites about handles that outlive their connection, and about times, on continuously available shares.
# long: 137
# limit: 900
export CA=1 SUITES="smb2.durable-open smb2.durable-v2-open smb2.durable-v2-delay smb2.replay smb2.lock smb2.timestamps"
exec bash "$(dirname "$0")/smbtorture.sh"
