-- A worker ends a batch. ARGV after P: 2 fk  3 meta (JSON about the execution)  4.. quintuples (id, attempt, action succeed|fail, cause, result)
-- Returns 1 (accepted) or 0 (another attempt owns it, or it has ended) for each.
local fk = ARGV[2]
local t = us()
local accepted = {}
local STATE = { succeed = 'succeeded', fail = 'failed' }
for i = 4, #ARGV, 5 do
  local id, attempt, action = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local key = record_key(fk, id)
  local r = facts(key)
  local ok = 0
  if r[1] and FROM[action][r[1]] and r[2] == attempt then
    settle(fk, id, key, r, STATE[action], ARGV[i + 3], t, ARGV[i + 4], ARGV[3])
    ok = 1
  end
  accepted[#accepted + 1] = ok
end
flush()
return accepted
