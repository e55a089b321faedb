-- Take, renew or (lease 0) give back the leader's lease. ARGV after P: 2 token held ('' = none)  3 lease_ms. Returns the token, or '' when somebody else leads.
-- A token is a number that only grows: every claim carries it, and a former leader's is refused.
local holder = redis.call('GET', P .. 'leader')
if ARGV[3] == '0' then
  if holder == ARGV[2] then redis.call('DEL', P .. 'leader') end
  return ''
end
if not holder then
  local token = int(redis.call('INCR', P .. 'fence'))
  redis.call('SET', P .. 'leader', token, 'PX', ARGV[3])
  return token
end
if holder == ARGV[2] then
  redis.call('PEXPIRE', P .. 'leader', ARGV[3])
  return holder
end
return ''
