-- A GPU worker that has just started holds nothing: give back what its former process held. arg.result: of one that a
-- limit makes fail. Returns how many.
local t = us()
local members = redis.call('SMEMBERS', P .. 'held:' .. arg.gpu)
for _, member in ipairs(members) do
  local fk, id = split(member)
  local key = record_key(fk, id)
  local state = redis.call('HGET', key, F.state)
  if state and FROM.requeue[state] then
    mark_lost(key, arg.gpu)
    back(fk, id, key, 'worker_lost', t, arg.result)
  else
    redis.call('SREM', P .. 'held:' .. arg.gpu, member)
  end
end
flush()
return #members
