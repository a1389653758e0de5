-- Stores a message: delayed until it is due, ready after this score and the sequence, or without a
-- place. Returns a number, or the error of a key of another type, after which it is not stored.
-- use: add
-- keys: messages, stats, expiry, delayed, ready
local function store(tag, envelope, score, due, expires)
  local sequence
  local done = redis.pcall('HSET', messages, tag, envelope)
  if type(done) == 'number' then
    -- Publishing and promoting both increase the sequence, so it never repeats.
    sequence = redis.pcall('HINCRBY', stats, 'published', 1)
    if type(sequence) == 'table' then -- the stored value is no number: restart
      sequence = 1
      done = redis.pcall('HSET', stats, 'published', 1)
    end
  end
  if type(done) == 'number' and expires then
    done = redis.pcall('ZADD', expiry, expires, tag)
  end
  if type(done) == 'number' and due then
    done = redis.pcall('ZADD', delayed, due, tag)
  elseif type(done) == 'number' and score then
    done = redis.pcall('ZADD', ready, score + sequence, tag)
  end
  if type(done) ~= 'number' then
    redis.pcall('HDEL', messages, tag)
    redis.pcall('ZREM', expiry, tag)
    redis.pcall('HINCRBY', stats, 'published', sequence and -1 or 0)
  elseif counts_bytes and (due or score) then
    add(stats, 'waiting_bytes', #envelope)
  end
  return done
end
