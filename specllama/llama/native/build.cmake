# Runs inside ggml's project (installer): llama.cpp is compiled as it is, in less time.

# llama-cpp-python's CMakeLists forces llama.cpp's common library on, 40 % of the compilation; nothing here uses it.
set(LLAMA_BUILD_COMMON OFF PARENT_SCOPE)
include("${CMAKE_CURRENT_LIST_DIR}/libllama.cmake")

# What libmtmd is compiled from, later and only for models that see (llama/vision_build.py).
if(DEFINED SKBUILD_PLATLIB_DIR)
  set(llama_cpp "${CMAKE_CURRENT_SOURCE_DIR}/..")
  foreach(folder include ggml/include tools/mtmd tools/mtmd/debug tools/mtmd/models)
    file(GLOB specllama_files "${llama_cpp}/${folder}/*.h" "${llama_cpp}/${folder}/*.cpp")
    install(FILES ${specllama_files} DESTINATION "${SKBUILD_PLATLIB_DIR}/llama_cpp/source/${folder}")
  endforeach()
endif()
