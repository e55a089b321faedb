-- The leader ends waiting invocations. ARGV after P: 2 fence  3.. quintuples (fk, id, action reject|expire|fail, cause, result)
-- Returns {'fenced'} or 1 | 0 for each.
if not is_leader(ARGV[2]) then return { 'fenced' } end
local t = us()
local STATE = { reject = 'rejected', expire = 'expired', fail = 'failed' }
local out = {}
for i = 3, #ARGV, 5 do
  local fk, id, action = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local key = record_key(fk, id)
  local r = facts(key)
  if r[1] == 'queued' and FROM[action][r[1]] then
    settle(fk, id, key, r, STATE[action], ARGV[i + 3], t, ARGV[i + 4])
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
flush()
return out
