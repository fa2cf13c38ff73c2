-- release: ends a request, whatever its state, and grants the waiters that become grantable.
--
-- KEYS[1]    anchor
-- KEYS[2]    absent
-- ARGV[1]    id
-- ARGV[2]    owner that must have it, or "" for whoever has it
-- ARGV[3]    token that it must have, or "" for any
--
-- returns {"released", is there more to settle, granted id, ...} | {"unknown"} | {"refused", owner, token} | {"foreign", key}
-- Repeating it answers "unknown" and changes nothing.

local id, owner, token = ARGV[1], ARGV[2], ARGV[3]

--@include _is_record
--@include _free_unawaited
--@include _base
--@include _grant

local request, bad = read(id)
if bad then return { 'foreign', bad } end
if not request then return { 'unknown' } end
-- An owner alone names what that process took for itself, or what waits in that queue: never a task
-- that one of its executors has claimed meanwhile.
local is_claimed_task = request.state == 'held' and request.lane
if not is_mine(request, owner, token) or is_claimed_task and owner ~= '' and token == '' then
  return { 'refused', request.owner, request.token or '' }
end
bad = foreign_for_hand_over()
if bad then return { 'foreign', bad } end
local granted = finish(request)
return reply('released', reply(is_unsettled(), granted))
