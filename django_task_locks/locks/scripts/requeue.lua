-- requeue: hands back a claimed request that never started: it waits with its old score, and whoever
-- is grantable now, itself included, is granted.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   id
-- ARGV[2]   owner that must hold it
-- ARGV[3]   token that it must have
--
-- returns {"requeued", is there more to settle, granted id, ...} | {"unknown"} | {"refused", owner, token} | {"foreign", key}

--@include _base
--@include _grant

local request, bad = read(ARGV[1])
if bad then return { 'foreign', bad } end
if not request then return { 'unknown' } end
local owner, number = request.owner, request.slot and request.slot:match('^%d+')
if request.state ~= 'held' or not request.lane or not is_mine(request, ARGV[2], ARGV[3]) then
  return { 'refused', owner, request.token or '' }
end
local home = QUEUE .. request.queue
bad = foreign(OWNER .. home, 'set') or foreign(READY .. request.lane, 'zset')
  or foreign_queue(request) or foreign_for_hand_over()
if bad then return { 'foreign', bad } end

next_number()
give_back(request)
redis.pcall('SREM', OWNER .. owner, request.id)
if number and redis.pcall('HGET', SLOT .. owner, number) == request.id then
  redis.call('HDEL', SLOT .. owner, number)
end
redis.call('SADD', OWNER .. home, request.id)
enqueue(request)
request.owner, request.slot, request.token = home, nil, nil
set_state(request, 'waiting')
local granted = hand_over(request, request)
return reply('requeued', reply(is_unsettled(), granted))
