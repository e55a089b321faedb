-- A GPU worker's heartbeat: its report (JSON) for arg.ttl_ms, its leases renewed. items: fk, id, attempt of what it runs.
-- arg.cursor: how far it has read its commands, '' = not yet. Returns the ids that it does not own any more.
local gpu = arg.gpu
local t = us()
redis.call('SET', P .. 'gpu:' .. gpu, arg.report, 'PX', arg.ttl_ms)
redis.call('SADD', P .. 'gpus', gpu)
redis.call('HSET', P .. 'seen', gpu, int(t))
if arg.cursor ~= '' then redis.call('HSET', P .. 'cmdpos', gpu, arg.cursor) end
local lost = {}
for _, item in ipairs(items) do
  local record = read(record_key(item.fk, item.id), 'state', 'attempt')
  if record.state == 'running' and record.attempt == item.attempt then
    redis.call('ZADD', P .. 'leases', 'XX', int(t + tonumber(arg.lease_us)), item.fk .. '|' .. item.id)
  else
    lost[#lost + 1] = item.id
  end
end
emit(list.Reported({ gpu = gpu, at_us = t, report = arg.report }))
freed = true
flush()
return lost
