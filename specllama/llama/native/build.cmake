# Runs inside ggml's project (installer): llama.cpp is compiled as it is, in less time.

# llama-cpp-python's CMakeLists forces llama.cpp's common library on, 40 % of the compilation; nothing here uses it.
set(LLAMA_BUILD_COMMON OFF PARENT_SCOPE)
include("${CMAKE_CURRENT_LIST_DIR}/libllama.cmake")
