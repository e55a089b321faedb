-- Return what ran out of lease to the queue, arg.at_most of them. arg.result: of one that a limit makes fail.
-- Returns how many, -1 = fenced.
if not is_leader(arg.token) then return -1 end
local t = us()
local members = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', int(t), 'LIMIT', 0, arg.at_most)
for _, member in ipairs(members) do
  local fk, id = split(member)
  local key = record_key(fk, id)
  local record = read(key, 'state', 'gpu')
  local state = record.state
  if state and FROM.requeue[state] then
    -- One that still reports is not lost: a message was, or it does not come to its end.
    if redis.call('EXISTS', P .. 'gpu:' .. record.gpu) == 0 then mark_lost(key, record.gpu) end
    back(fk, id, key, state == 'running' and 'worker_lost' or 'dispatch_lost', t, arg.result)
  else
    redis.call('ZREM', P .. 'leases', member)
  end
end
flush()
return #members
