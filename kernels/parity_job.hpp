// From what a Coder would be given to what the GPU kernel takes; host code, so that it is tested without a GPU.
#pragma once

#include <span>

#include "kernels/coder.hpp"
#include "kernels/parity_body.hpp"

namespace ckpt::kernels::device {

// Sources [columns of the matrix] and outputs [rows]. Throws std::invalid_argument where their numbers differ from the
// matrix's, or an output asks for digests: they are made by kernels/digest_cuda.hpp.
ParityJob make_parity_job(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                          std::size_t length_bytes, bool to_sum);

// Whether xor_vector() does it: one row, all ones.
bool is_xor(const ParityJob& job, std::size_t rows);

}  // namespace ckpt::kernels::device
