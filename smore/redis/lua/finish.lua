-- A worker ends a batch. items: id, attempt, action succeed|fail, cause, result. arg.meta: JSON about the execution.
-- Returns 1 (accepted) or 0 (another attempt owns it, or it has ended) for each.
local t = us()
local accepted = {}
local STATE = { succeed = 'succeeded', fail = 'failed' }
for _, item in ipairs(items) do
  local key = record_key(arg.fk, item.id)
  local record = settled_record(key)
  local ok = 0
  if record.state and FROM[item.action][record.state] and record.attempt == item.attempt then
    settle(arg.fk, item.id, key, record, STATE[item.action], item.cause, t, item.result, arg.meta)
    ok = 1
  end
  accepted[#accepted + 1] = ok
end
flush()
return accepted
