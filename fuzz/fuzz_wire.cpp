// Headers that agents receive, and whether they are plausible. What is plausible bounds what is allocated for it.
//
// An input is the size of the payload as 8 bytes, then the header.
#include "fuzz/fuzz.hpp"
#include "net/wire.hpp"

namespace ckpt::fuzz {
namespace {

namespace wire = net::wire;

template <class T>
std::string seed_of(std::uint64_t payload_bytes, const T& header) {
  return text_of(wire::bytes_of(payload_bytes)) + text_of(wire::bytes_of(header));
}

void try_answer(const wire::FetchAnswer& answer, std::size_t payload_bytes) {
  if (!wire::plausible(answer, payload_bytes)) return;
  require(answer.status <= wire::Status::waiting && payload_bytes <= wire::manifest_bytes_max);
  if (answer.status != wire::Status::found) return;
  const std::size_t count = wire::grain_count(answer.data_bytes);
  require(count <= answer.data_bytes / wire::grain_bytes + 1);
  // The last grain is a chunk that may come, and nothing behind it is.
  if (count == 0) return;
  const std::uint64_t last = (count - 1) * wire::grain_bytes;
  require(wire::plausible(wire::Chunk{answer.request, last}, answer.data_bytes - last, answer.data_bytes,
                          answer.chunk_bytes));
  require(!wire::plausible(wire::Chunk{answer.request, last + 1}, answer.data_bytes - last - 1, answer.data_bytes,
                           answer.chunk_bytes));
}

void try_request(const wire::FetchRequest& request, std::size_t payload_bytes) {
  if (wire::plausible(request, payload_bytes)) require(payload_bytes <= wire::shard_name_bytes_max);
  static const std::vector<std::byte> piece(100'000);
  const auto range = wire::range_of(request, piece);
  require(range.data() >= piece.data() && range.size() <= request.size_bytes);
  const auto first_byte = static_cast<std::uint64_t>(range.data() - piece.data());
  require(first_byte <= piece.size() && range.size() <= piece.size() - first_byte);
  require(range.empty() || first_byte == request.first_byte);
}

void try_chunk(const wire::Chunk& chunk, std::size_t payload_bytes) {
  for (const std::size_t data_bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1'000'000}, SIZE_MAX})
    for (const std::size_t chunk_bytes : {wire::grain_bytes, std::size_t{100'000}, SIZE_MAX})
      if (wire::plausible(chunk, payload_bytes, data_bytes, chunk_bytes))
        require(chunk.offset < data_bytes && payload_bytes <= data_bytes - chunk.offset);
}

}  // namespace

void try_input(Input input) {
  std::uint64_t payload_bytes = 0;
  if (input.size() < sizeof(payload_bytes)) return;
  std::memcpy(&payload_bytes, input.data(), sizeof(payload_bytes));
  const Input header = input.subspan(sizeof(payload_bytes));
  if (const auto hello = wire::decode<wire::Hello>(header); hello && wire::plausible(*hello))
    require(hello->magic == wire::magic && hello->version == wire::version);
  if (const auto request = wire::decode<wire::FetchRequest>(header)) try_request(*request, payload_bytes);
  if (const auto answer = wire::decode<wire::FetchAnswer>(header)) try_answer(*answer, payload_bytes);
  if (const auto chunk = wire::decode<wire::Chunk>(header)) try_chunk(*chunk, payload_bytes);
}

std::vector<std::string> seeds() {
  return {seed_of(0, wire::Hello{}),
          seed_of(5, wire::FetchRequest{1, 77, 0, UINT64_MAX, 5, 1}),
          seed_of(5, wire::FetchRequest{1, 77, 65'536, 1'000'000, 5, 0}),
          seed_of(100, wire::FetchAnswer{1, 1'000'000, wire::grain_bytes, 100, wire::Status::found}),
          seed_of(0, wire::FetchAnswer{1, 0, 0, 0, wire::Status::refused}),
          seed_of(wire::grain_bytes, wire::Chunk{1, wire::grain_bytes}),
          seed_of(0, wire::Control{1})};
}

}  // namespace ckpt::fuzz
