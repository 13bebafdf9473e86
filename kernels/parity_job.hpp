// Turns a matrix with its sources and outputs, as Coder::combine() takes them, into the arguments of the GPU kernel
// that encodes parity. It runs on the host, so tests need no GPU.
#pragma once

#include <span>

#include "kernels/coder.hpp"
#include "kernels/parity_body.hpp"

namespace ckpt::kernels::device {

// One source per column of the matrix, one output per row. Throws std::invalid_argument if their numbers differ from
// that, or if an output asks for digests: kernels/digest_cuda.hpp makes those.
ParityJob make_parity_job(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                          std::size_t length_bytes, bool to_sum);

// Whether xor_vector() can do the job: one row, all ones.
bool is_xor(const ParityJob& job, std::size_t rows);

}  // namespace ckpt::kernels::device
