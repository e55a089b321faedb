-- Cancel one invocation. ARGV after P: 2 project  3 id  4 result  5 '1' = only while it waits
-- Returns {'absent'} | {'ended', state} | {'cancelled', state before}. A running one is also named to its GPU worker, which kills the runner if
-- nobody else's work is in it; its result, should it still come, is refused by finish.lua.
local key = P .. 'i:' .. ARGV[2] .. ':' .. ARGV[3]
local fk, r = redis.call('HGET', key, 'f'), facts(key)
if not fk then return { 'absent' } end
if not FROM.cancel[r[1]] or (ARGV[5] == '1' and r[1] ~= 'queued') then return { 'ended', r[1] } end
settle(fk, ARGV[3], key, r, 'cancelled', 'cancelled', us(), ARGV[4])
if r[1] == 'running' then
  redis.call('XADD', P .. 'cmd:' .. r[3], 'MAXLEN', '~', 1000, '*', 'c', cmsgpack.pack({ 'cancel', 1, fk, ARGV[3], tonumber(r[2]) }))
end
flush()
return { 'cancelled', r[1] }
