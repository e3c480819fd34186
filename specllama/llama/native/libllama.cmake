# Included by build.cmake: compiles libllama in less time. ggml and its kernels stay as they are.
#
# Most of libllama runs once, while a model is loaded or its graph is built: -O1 does for it, as it contains no
# arithmetic on weights. What runs in every decode keeps -O2.

function(specllama_compile_less)
  set(every_decode llama-context.cpp llama-kv-cache.cpp llama-batch.cpp llama-graph.cpp llama-model.cpp llama-vocab.cpp
    unicode.cpp)
  set_target_properties(llama PROPERTIES UNITY_BUILD_BATCH_SIZE 40) # of the models' graphs, which share large headers
  get_target_property(directory llama SOURCE_DIR)
  list(TRANSFORM every_decode PREPEND "${directory}/")
  target_compile_options(llama PRIVATE $<$<CONFIG:Release>:-O1>)
  set_source_files_properties(${every_decode} TARGET_DIRECTORY llama
    PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)
endfunction()

# When this runs, llama.cpp has not defined its library yet.
cmake_language(DEFER DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/.." CALL specllama_compile_less)
