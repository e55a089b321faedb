-- Return what ran out of lease to the queue. ARGV after P: 2 fence  3 at most  4 result if a limit makes it fail. Returns how many, or -1 (fenced).
if not is_leader(ARGV[2]) then return -1 end
local t = us()
local members = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', int(t), 'LIMIT', 0, ARGV[3])
for _, member in ipairs(members) do
  local fk, id = split(member)
  local key = record_key(fk, id)
  local st = redis.call('HGET', key, 'st')
  if st and FROM.requeue[st] then
    back(fk, id, key, st == 'running' and 'worker_lost' or 'dispatch_lost', t, ARGV[4])
  else
    redis.call('ZREM', P .. 'leases', member)
  end
end
flush()
return #members
