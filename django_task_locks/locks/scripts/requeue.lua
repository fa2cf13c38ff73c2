-- requeue: hands back a claimed request: it waits with its old score, or with none until it is due, and
-- whoever is grantable now, itself included, is granted.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   id
-- ARGV[2]   owner that must hold it
-- ARGV[3]   token that it must have
-- ARGV[4]   time before which it takes no place in any queue, as Unix time in ms, or ""
--
-- returns {"requeued", is there more to settle, granted id, ...} | {"unknown"} | {"refused", owner, token} | {"foreign", key}

--@include _base
--@include _grant
--@include _postpone

local request, bad = read(ARGV[1])
if bad then return { 'foreign', bad } end
if not request then return { 'unknown' } end
local owner, number = request.owner, request.slot and request.slot:match('^%d+')
if request.state ~= 'held' or not request.lane or not is_mine(request, ARGV[2], ARGV[3]) then
  return { 'refused', owner, request.token or '' }
end
local home, must_wait = QUEUE .. request.queue, is_early(ARGV[4])
bad = foreign(OWNER .. home, 'set') or foreign(READY .. request.lane, 'zset')
  or foreign_queue(request) or foreign_for_hand_over() or must_wait and foreign(DUE, 'zset')
if bad then return { 'foreign', bad } end

next_number()
local marked = give_back(request)
redis.pcall('SREM', OWNER .. owner, request.id)
if number and redis.pcall('HGET', SLOT .. owner, number) == request.id then
  redis.call('HDEL', SLOT .. owner, number)
end
redis.call('SADD', OWNER .. home, request.id)
request.owner, request.slot, request.token = home, nil, nil
if must_wait then
  postpone(request, ARGV[4])
else
  enqueue(request)
  set_state(request, 'waiting')
end
local granted = hand_over(request, not must_wait and request)
for _, resource in ipairs(marked) do drop_mark(resource) end
return reply('requeued', reply(is_unsettled(), granted))
