-- Drop records whose time is over, arg.at_most of them. Returns how many.
local members = redis.call('ZRANGEBYSCORE', P .. 'done', '-inf', int(us()), 'LIMIT', 0, arg.at_most)
for _, member in ipairs(members) do
  local fk, id = split(member)
  local key = record_key(fk, id)
  result_bytes = result_bytes - (redis.call('HGET', key, F.result_bytes) or 0)
  redis.call('DEL', key, P .. 'r:' .. project(fk) .. ':' .. id)
  redis.call('ZREM', P .. 'done', member)
end
flush()
return #members
