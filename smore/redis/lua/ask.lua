-- Ask the leader what would become of one invocation, without placing it. ARGV after P:
--  2 id of the question ('' = ask only the gate, not the leader)  3 fk  4 revision  5 rows  6 slo_us (deadline = now + slo; 0 = use 7)  7 deadline_us  8 payload bytes
--  9 max pending of the function  10 max pending  11 max payload bytes  12 max result bytes  13 max events  14 max keys  15 max questions a second
--  16..19 limits of the project, as in enqueue.lua
-- Returns {now, deadline, what the gate needs in us, '' or the bound that is full, '' | 'function' | 'platform' where it is paused,
-- 'asked' | 'many' (more questions within a second than allowed) | 'alone' (nobody leads) | 'gate',
-- '' or the limit of the project that one more would break, its value, how long until it could be taken in us}
local fk = ARGV[3]
local t = us()
local deadline = tonumber(ARGV[7])
if ARGV[6] ~= '0' then deadline = t + tonumber(ARGV[6]) end
local paused = redis.call('SISMEMBER', P .. 'paused', '*') == 1 and 'platform' or redis.call('SISMEMBER', P .. 'paused', 'f:' .. fk) == 1 and 'function' or ''
local field, most, after = limited(fk, t, { unpack(ARGV, 16, 19) }, true)
local found = { int(t), int(deadline), int(needed(fk, t)), full(fk, tonumber(ARGV[8]), { unpack(ARGV, 9, 14) }) or '', paused, 'gate',
  field or '', most or '0', int(after or 0) }
if ARGV[2] == '' then return found end
if redis.call('EXISTS', P .. 'leader') == 0 then
  found[6] = 'alone'
  return found
end
local asked = redis.call('INCR', P .. 'asks')
if asked == 1 then redis.call('PEXPIRE', P .. 'asks', 1000) end
if asked > tonumber(ARGV[15]) then
  found[6] = 'many'
  return found
end
emit({ 'k', 1, ARGV[2], fk, tonumber(ARGV[4]), tonumber(ARGV[5]), deadline, t })
ring()
found[6] = 'asked'
return found
