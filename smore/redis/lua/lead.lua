-- Take (arg.token ''), renew or give back (arg.lease_ms 0) the leader's lease. Returns the token, '' = another leads.
-- A token is a number that only grows: every script that decides gets it and refuses a former leader's.
local holder = redis.call('GET', P .. 'leader')
if arg.lease_ms == '0' then
  if holder == arg.token then redis.call('DEL', P .. 'leader') end
  return ''
end
if not holder then
  local token = int(redis.call('INCR', P .. 'fence'))
  redis.call('SET', P .. 'leader', token, 'PX', arg.lease_ms)
  return token
end
if holder == arg.token then
  redis.call('PEXPIRE', P .. 'leader', arg.lease_ms)
  return holder
end
return ''
