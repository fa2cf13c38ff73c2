-- free: takes out of a resource who holds it or waits for it without a request, and grants the
-- waiters that become grantable.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   resource
-- ARGV[2]   id
--
-- returns {"freed", is there more to settle, granted id, ...} | {"refused", owner, token}: there is
--         such a request | {"foreign", key}
-- Repeating it changes nothing.

--@include _base
--@include _grant

local resource, id = ARGV[1], ARGV[2]
local request, bad = read(id)
if bad then return { 'foreign', bad } end
if request then return { 'refused', request.owner, request.token or '' } end
bad = foreign_for_hand_over()
if bad then return { 'foreign', bad } end
next_number()
local gone = { id = id, exclusive = { resource }, shared = { resource } }
dequeue(gone)
local marked = give_back(gone)
local granted = hand_over(gone)
for _, name in ipairs(marked) do drop_mark(name) end
drop_mark(resource)
return reply('freed', reply(is_unsettled(), granted))
