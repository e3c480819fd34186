// What the figures mean. The terms are those of llama.cpp and of the papers on speculative decoding.

export const TEXTS = {
	tokens: "Tokens: the pieces of words that the model writes; about four characters each in English.",
	rate: "Tokens per second from the second token on; the first one is of the prompt.",
	gain:
		"Speed over plain decoding: tokens per second of this answer, over those of the model without drafts. That speed is " +
		"taken from rounds without a draft in this answer or, where they are few, from a time measured before. It is too " +
		"close to call where the 95 % interval holds 1, and at most the tokens a round.",
	accepted:
		"Acceptance rate: the share of verified draft tokens that the target chose too. Those that it did not choose are " +
		"discarded; the text stays the target's.",
	none: "No draft token was verified: each round wrote the target's one token, as plain decoding does.",
	first: "Time to first token: from the request, with the wait for a slot and the evaluation of the prompt.",
	prompt: "Prompt: tokens evaluated, and their speed. Those that were in the cache already are not evaluated again.",
	rounds:
		"Tokens a round: a round is one decode of the target, which verifies a draft and adds the target's own next token. " +
		"Plain decoding writes 1; it is the most that speculation can gain.",
	position:
		"Of the draft tokens at a position, the share that was accepted. A token counts only if all before it were accepted, " +
		"so later positions are accepted less often.",
	time: "Verify: decodes of the target. Draft: proposing tokens. Sampling: choosing tokens from the logits. Other: the rest.",
	curve:
		"t(n): milliseconds of one decode of the target with n rows, one row a token. Verifying a draft pays where n rows cost " +
		"little more than one.",
	slots: "Texts that can be written at once. They are decoded together; further requests wait for a slot.",
	context: "The KV cache: tokens of prompts and answers that the model can look back at, shared by the slots.",
	total:
		"Seconds that decoding without drafts would have taken, over the seconds that it took. Texts without drafts count; " +
		"those whose gain is unknown do not.",
	ties:
		"Where two tokens are almost equally likely, a decode of many rows may round to the other one. specllama decides those " +
		"again on a row of their own.",
	sources: "Which drafter proposed the tokens that were accepted. Target: tokens that the model chose without a draft.",
};
