-- A GPU worker that has just started holds nothing: give back what its former self held. ARGV after P: 2 gpu  3 result if a limit makes it fail.
-- Returns how many.
local t = us()
local members = redis.call('SMEMBERS', P .. 'held:' .. ARGV[2])
for _, member in ipairs(members) do
  local fk, id = split(member)
  local key = record_key(fk, id)
  local st = redis.call('HGET', key, 'st')
  if st and FROM.requeue[st] then
    back(fk, id, key, st == 'running' and 'worker_lost' or 'dispatch_lost', t, ARGV[3])
  else
    redis.call('SREM', P .. 'held:' .. ARGV[2], member)
  end
end
flush()
return #members
