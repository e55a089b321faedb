-- A synchronous caller has turned asynchronous: its record is kept as long as any other. ARGV after P: 2 project  3 id. Returns the state or ''.
local key = P .. 'i:' .. ARGV[2] .. ':' .. ARGV[3]
local r = redis.call('HMGET', key, 'st', 'f', 'fi')
if not r[1] then return '' end
redis.call('HSET', key, 'sync', 0)
if r[3] then redis.call('ZADD', P .. 'done', 'XX', int(tonumber(r[3]) + TTL_RESULT), r[2] .. '|' .. ARGV[3]) end
return r[1]
