-- A worker ends a batch. items: id, attempt, action succeed|fail, cause, result. arg.meta: JSON about the execution.
-- arg.drop_late '1' = what is past its deadline ends as expired, whatever came of it.
-- Returns 1 (accepted) or 0 (another attempt owns it, or it has ended) for each.
local t = us()
local accepted = {}
local STATE = { succeed = 'succeeded', fail = 'failed', drop = 'expired' }
for _, item in ipairs(items) do
  local key = record_key(arg.fk, item.id)
  local record = settled_record(key)
  local ok = 0
  local action, cause, result = item.action, item.cause, item.result
  if arg.drop_late == '1' and record.deadline_us and tonumber(record.deadline_us) < t then
    action, cause, result = 'drop', 'deadline_expired', BLOB_LATE
  end
  if record.state and FROM[action][record.state] and record.attempt == item.attempt then
    settle(arg.fk, item.id, key, record, STATE[action], cause, t, result, arg.meta)
    ok = 1
  end
  accepted[#accepted + 1] = ok
end
flush()
return accepted
