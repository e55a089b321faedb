-- Accept one invocation, or say why not. ARGV after P:
--  2 id  3 fk  4 revision  5 slo_us (deadline = now + slo; 0 = use 6)  6 deadline_us  7 reply channel  8 encoding  9 accept  10 rows  11 shape
--  12 sync 0|1 (told to a caller who waits, and not asked for again by key)  13 trace  14 key id  15 idempotency key ('' = none)  16 request hash  17 max pending of the function  18 max pending
--  19 max payload bytes  20 max result bytes  21 max events  22 idempotency ttl s  23 max attempts  24 max keys  25 payload
--  26..29 limits of the project: rate a second, burst, depth, concurrency ('' = none)
--  30 volatile 0|1 (the payload need not be on disk: who waits for the answer can send it again)
--  31 size of the payload where it lies beside Redis ('' = it is 25)
-- Returns {'ok', arrival, deadline} | {'replay', id} | {'mismatch', id} | {'full', what, limit} | {'limited', what, limit, us} | {'infeasible', earliest, now} | {'late', now}
local id, fk = ARGV[2], ARGV[3]
local t = us()
local key = record_key(fk, id)
-- The gateway repeats the call when a connection broke before the answer came.
local again = redis.call('HMGET', key, 'ar', 'dl')
if again[1] then return { 'ok', again[1], again[2] } end
local idem
if ARGV[15] ~= '' then
  idem = P .. 'idem:' .. project(fk) .. ':' .. ARGV[15]
  local known = redis.call('HMGET', idem, 'id', 'hash')
  if known[1] then
    if known[2] == ARGV[16] then return { 'replay', known[1] } end
    return { 'mismatch', known[1] }
  end
end
local deadline = tonumber(ARGV[6])
if ARGV[5] ~= '0' then deadline = t + tonumber(ARGV[5]) end
if deadline <= t then return { 'late', int(t) } end

local need = needed(fk, t)
if t + need > deadline then return { 'infeasible', int(t + need), int(t) } end

local payload = ARGV[25]
local size = tonumber(ARGV[31]) or #payload
local what, limit = full(fk, size, { ARGV[17], ARGV[18], ARGV[19], ARGV[20], ARGV[21], ARGV[24] })
if what then return { 'full', what, limit } end
local field, most, after = limited(fk, t, { unpack(ARGV, 26, 29) })
if field then return { 'limited', field, most, int(after) } end

-- Small hashes are scanned from the front: what is read and written most stands there.
redis.call('HSET', key, 'st', 'queued', 'at', 0, 'gpu', '', 'starts', 0, 'dl', int(deadline), 'ar', int(t), 'cl', 0, 'su', 0, 'rev', ARGV[4],
  'rows', ARGV[10], 'sync', idem and 0 or ARGV[12], 'psz', size, 'ch', ARGV[7], 'key', ARGV[14], 'tr', ARGV[13], 'sc', 0, 'enc', ARGV[8], 'acc', ARGV[9],
  'al', 0, 'f', fk, 'lost', 0, 'ma', ARGV[23], 'shp', ARGV[11], 'nd', int(need), 'v', 1)
local volatile = ARGV[30] == '1'
if volatile then redis.set_repl(redis.REPL_REPLICA) end
redis.call('SET', P .. 'p:' .. project(fk) .. ':' .. id, payload)
if volatile then redis.set_repl(redis.REPL_ALL) end
payload_bytes = size
if idem then
  redis.call('HSET', idem, 'id', id, 'hash', ARGV[16])
  redis.call('EXPIRE', idem, ARGV[22])
end
attach(fk, id, int(deadline))
count(fk, 'open', 1)
flush()
emit({ 'a', 1, fk, tonumber(ARGV[4]), id, t, deadline, tonumber(ARGV[10]), ARGV[11], ARGV[14], ARGV[13], need })
return { 'ok', int(t), int(deadline) }
