-- A worker gives invocations back. ARGV after P: 2 fk  3 cause  4 refund 0|1  5 alone 0|1  6 result if a limit makes it fail  7.. pairs (id, attempt)
-- Returns for each: 1 queued again, 0 failed by a limit, -1 not ours.
local fk = ARGV[2]
local t = us()
local out = {}
for i = 7, #ARGV, 2 do
  local id, attempt = ARGV[i], ARGV[i + 1]
  local key = record_key(fk, id)
  local r = redis.call('HMGET', key, 'st', 'at')
  if r[1] and FROM.requeue[r[1]] and r[2] == attempt then
    out[#out + 1] = back(fk, id, key, ARGV[3], t, ARGV[6], ARGV[4] == '1', ARGV[5] == '1')
  else
    out[#out + 1] = -1
  end
end
flush()
return out
