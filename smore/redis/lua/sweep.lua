-- Drop records whose time is over. ARGV after P: 2 at most. Returns how many.
local members = redis.call('ZRANGEBYSCORE', P .. 'done', '-inf', int(us()), 'LIMIT', 0, ARGV[2])
for _, member in ipairs(members) do
  local fk, id = split(member)
  local key = record_key(fk, id)
  result_bytes = result_bytes - (redis.call('HGET', key, 'rsz') or 0)
  redis.call('DEL', key, P .. 'r:' .. project(fk) .. ':' .. id)
  redis.call('ZREM', P .. 'done', member)
end
flush()
return #members
