-- A GPU worker's heartbeat: its report for a while, its leases renewed. ARGV after P: 2 gpu  3 report (JSON)  4 ttl_ms  5 lease_us  6 command cursor
-- 7.. triples (fk, id, attempt) of what it runs. Returns the ids it does not own any more.
local gpu = ARGV[2]
local t = us()
redis.call('SET', P .. 'gpu:' .. gpu, ARGV[3], 'PX', ARGV[4])
redis.call('SADD', P .. 'gpus', gpu)
if ARGV[6] ~= '' then redis.call('HSET', P .. 'cmdpos', gpu, ARGV[6]) end
local lost = {}
for i = 7, #ARGV, 3 do
  local fk, id = ARGV[i], ARGV[i + 1]
  local r = redis.call('HMGET', record_key(fk, id), 'st', 'at')
  if r[1] == 'running' and r[2] == ARGV[i + 2] then
    redis.call('ZADD', P .. 'leases', 'XX', int(t + tonumber(ARGV[5])), fk .. '|' .. id)
  else
    lost[#lost + 1] = id
  end
end
emit({ 'r', 1, gpu, t, ARGV[3] })
freed = true
flush()
return lost
