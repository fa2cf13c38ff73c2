-- What of a value of ours makes it the record of a request.

local function is_record(value)
  return type(value) == 'table' and type(value.state) == 'string' and type(value.owner) == 'string'
    and tonumber(value.score) ~= nil
end
