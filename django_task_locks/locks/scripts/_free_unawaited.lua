-- The usual end of a hold, in few commands: it is held, and nobody waits for what it leaves, or one
-- is next to whom it can be passed on. Where it is not that simple it falls through, and nothing has
-- changed but the counter. No function, as in _grant_free.

repeat
  local key = REQUEST .. id
  local is_json, request = pcall(cjson.decode, redis.pcall('GET', key))
  if not is_json or not is_record(request) or request.state ~= 'held' or request.slot
    or request.lane or request.watched or owner ~= '' and request.owner ~= owner
    or token ~= '' and request.token ~= token then
    break
  end
  local exclusive, shared = request.exclusive or {}, request.shared or {}
  if #exclusive + #shared > 1700 then break end

  -- a copy has its length from the start: one that grows is copied again and again
  local freed, values, value, is_simple = { unpack(exclusive) }, {}, UNAWAITED .. id, true
  local count, members = #exclusive, nil
  for index = 1, count do freed[index] = LOCK .. exclusive[index] end
  for index = 1, #shared do freed[count + index] = LOCK .. shared[index] end
  if freed[1] then values = redis.call('MGET', unpack(freed)) end
  for index = 1, count do is_simple = is_simple and values[index] == value end
  value = SOLE .. id
  for index = 1, #shared do
    if values[count + index] ~= value then
      members = members or {}
      members[#members + 1] = freed[count + index]
      is_simple = is_simple and redis.call('EXISTS', WAIT .. shared[index]) == 0
      freed[count + index] = key -- which is deleted anyway
    end
  end
  if not is_simple then
--@include _pass_on
    break
  end
  redis.call('DEL', key, GRANT .. id, unpack(freed))
  if members then
    for index = 1, #members do redis.pcall('SREM', members[index], id) end
  end
  redis.pcall('SREM', OWNER .. request.owner, id)
  return { 'released', 0 }
until true
