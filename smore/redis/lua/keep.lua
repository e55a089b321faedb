-- The caller stops waiting: its record is kept as long as any other. Returns the state, '' = no such invocation.
local key = P .. 'i:' .. arg.project .. ':' .. arg.id
local record = read(key, 'state', 'fk', 'finished_us')
if not record.state then return '' end
redis.call('HSET', key, F.sync, 0)
if record.finished_us then
  redis.call('ZADD', P .. 'done', 'XX', int(tonumber(record.finished_us) + TTL_RESULT), record.fk .. '|' .. arg.id)
end
return record.state
